"""Speed and memory, measured side by side. `make bench`, `make bench-peers`; last figures in README.md."""
