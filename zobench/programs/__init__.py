"""What can run a cell: zobench itself."""
