"""Plugin folders that ship with raypipe. No module outside this folder imports them."""
