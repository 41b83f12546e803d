"""Where a run lies: workers over the mesh, a worker's parameters over its members, one copy of what all agree on."""
