"""How a built binary becomes what people install; tools/dist and tools/release are the commands."""
