"""One question at a time: answering over a release, over HTTP (`http`) and on Ray Serve (`ray`)."""
