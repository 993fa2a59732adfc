"""The float64 run of a problem's reference: wider dtypes, attention by blocks, and a limit of device memory."""
