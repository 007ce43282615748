//! Runners: llama.cpp and a simulated engine.
