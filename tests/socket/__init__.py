"""Tests over real sockets."""
