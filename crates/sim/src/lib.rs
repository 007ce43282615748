//! A virtual-time world that measures delivery schemes over lossy links.
