"""The call language of knowledge graphs: parse, print, time words, function calls, answer rules. All pure."""
