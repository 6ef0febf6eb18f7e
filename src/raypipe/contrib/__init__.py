"""Plugin folders that ship with raypipe. Nothing outside of this folder imports them."""
