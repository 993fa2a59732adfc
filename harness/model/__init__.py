"""Pure data: what the other packages exchange. Imports nothing of the harness but `errors`."""
