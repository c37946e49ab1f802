"""Where jobs run: processes of this machine, or the nodes of a Ray cluster."""
