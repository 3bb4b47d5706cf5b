"""Where clients connect: sockets, TLS handshakes, connections and who is at their other end."""
