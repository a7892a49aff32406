#include "report.h"

#include <sys/resource.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace program {

std::string number(double value) {
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string shortest(buffer, end);
  const size_t e = shortest.find('e');
  const int exponent = std::atoi(shortest.c_str() + e + 1);
  std::string digits = shortest.substr(0, e);
  if (exponent < -4 || exponent >= 16) return shortest;
  const bool is_negative = digits[0] == '-';
  if (is_negative) digits.erase(0, 1);
  if (digits.size() > 1) digits.erase(1, 1);  // the point
  if (exponent < 0) {
    digits = "0." + std::string(size_t(-exponent - 1), '0') + digits;
  } else {
    const auto whole = size_t(exponent) + 1;
    if (digits.size() < whole) digits.resize(whole, '0');
    digits = digits.substr(0, whole) + "." + (digits.size() > whole ? digits.substr(whole) : "0");
  }
  return (is_negative ? "-" : "") + digits;
}

Json& Json::raw(const char* key, const std::string& value) {
  text_ += (text_.empty() ? "\"" : ", \"") + std::string(key) + "\": " + value;
  return *this;
}

Json& Json::add(const char* key, const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) >= 32) quoted += c;
  }
  return raw(key, quoted + "\"");
}

Json& Json::add(const char* key, double value) { return raw(key, std::isfinite(value) ? number(value) : "null"); }

std::string Json::text() const {
  std::string whole;
  whole.reserve(usual_room);
  return whole.append("{").append(text_).append("}");
}

double peak_rss_mb() {
  if (std::FILE* const status = std::fopen("/proc/self/status", "r")) {
    char line[256];
    long long kib = -1;  // of this program; getrusage also counts the one before exec
    while (kib < 0 && std::fgets(line, sizeof line, status)) (void)std::sscanf(line, "VmHWM: %lld", &kib);
    std::fclose(status);
    if (kib >= 0) return double(kib) / 1024.0;
  }
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return double(usage.ru_maxrss) / 1024.0;
}

}  // namespace program
