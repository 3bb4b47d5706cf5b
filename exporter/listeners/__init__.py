"""Where clients connect: sockets, TLS handshakes, connections and the identity of peers."""
