"""The view in the browser: a server on this machine that shows runs, while they go on and afterwards."""
