"""A federation of real sites: folders, certificates, processes and the gate in front of the SuperLink."""
