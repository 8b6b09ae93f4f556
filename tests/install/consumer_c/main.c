// Uses an installed heddle from C as any project would.
#include <heddle/c.h>
#include <string.h>

int main(void) {
  const char* json = NULL;
  return heddle_devices_json(&json) == HEDDLE_OK && strstr(json, "\"cpu\"") != NULL ? 0 : 1;
}
