"""How a built binary becomes what people install; tools/dist is the command. The standard library is enough."""
