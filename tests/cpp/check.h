// A test per TEST(name) { ... }, a claim per CHECK(...): enough for native tests that must build anywhere with no
// package.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

namespace check {

struct test_case {
  const char* name;
  void (*body)();
};

inline std::vector<test_case>& tests() {
  static std::vector<test_case> all;
  return all;
}

inline int& failures() {
  static int count = 0;
  return count;
}

struct registrar {
  registrar(const char* name, void (*body)()) { tests().push_back({name, body}); }
};

inline void failed(const char* file, int line, const char* claim) {
  std::printf("%s:%d: %s\n", file, line, claim);
  ++failures();
}

inline bool close(double got, double want, double tolerance) {
  return std::abs(got - want) <= tolerance * (1.0 + std::abs(want));
}

// Runs every test whose name contains argv[1], or all. The exit status is 0 only if all claims held.
inline int run(int argc, char** argv) {
  int ran = 0;
  for (const test_case& test : tests()) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    const int before = failures();
    test.body();
    ++ran;
    if (failures() != before) std::printf("FAILED %s\n", test.name);
  }
  std::printf("%d tests, %d failed claims\n", ran, failures());
  return failures() == 0 && ran > 0 ? 0 : 1;
}

}  // namespace check

#define TEST(name)                                            \
  static void name();                                         \
  static const check::registrar register_##name(#name, name); \
  static void name()

#define CHECK(claim) \
  if (!(claim)) check::failed(__FILE__, __LINE__, #claim)
