"""For those who write plugins: the place of conformance suites, one per extension point, and of their fakes.

It may import every floor below `cli` and is imported by none of them. It is empty so far: until the suites are
here, a plugin is tested by installing it, and `examples/plugins` shows two that are.
"""
