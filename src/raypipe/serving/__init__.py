"""Serving: one question at a time over a release, over HTTP (`http`) and on Ray Serve (`ray`)."""
