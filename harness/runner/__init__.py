"""Code that runs inside the sandbox. Imports the standard library and torch, and nothing else of the harness."""
