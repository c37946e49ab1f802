"""Where jobs run: processes on this machine, or the nodes of a Ray cluster."""
