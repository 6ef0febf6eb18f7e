"""Serving of single questions over a release, by HTTP (`http`) and on Ray Serve (`ray`)."""
