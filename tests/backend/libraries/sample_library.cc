extern "C" int sample_version();
extern "C" int sample_version() { return SAMPLE_VERSION; }
