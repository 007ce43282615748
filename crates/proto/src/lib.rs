//! Sans-IO delivery protocol: frames, delta log, coalescer, sender, receiver.
