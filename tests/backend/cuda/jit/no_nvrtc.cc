// A shared library that is not NVRTC.
extern "C" int nvrtcVersion(int* major, int* minor) {
  *major = 99;
  *minor = 0;
  return 0;
}
