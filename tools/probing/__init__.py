"""Third-party tools against the binary: `tools/probe` runs them, `docs/probes.md` has what they found."""
