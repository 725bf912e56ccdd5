"""The cryptography of a secure sum with drop-outs and of a shuffler, without any network."""
