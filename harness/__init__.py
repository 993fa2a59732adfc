"""A git-native workspace in which coding agents make GPU kernels fast, and a judge that proves it."""

__version__ = "0.1.0"
