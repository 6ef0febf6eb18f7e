"""Call language of knowledge graphs: parser, printer, time words, function calls, answer rules. All pure."""
