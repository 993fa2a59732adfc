"""Help texts of options that several commands have."""

CLUSTER = "Judge on the devices of a Ray cluster: `auto` (the one that runs on this host), or HOST:PORT."
