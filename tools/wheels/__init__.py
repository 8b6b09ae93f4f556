"""What tools/build_wheels.py builds with: a compiler for an older glibc (toolchain), and the libraries that wheels carry
(libraries)."""
