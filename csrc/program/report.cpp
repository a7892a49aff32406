#include "report.h"

#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace program {

std::string_view number(double value, std::array<char, 48>& room) {
  char shortest[40];
  char* const end = std::to_chars(shortest, shortest + sizeof shortest - 1, value, std::chars_format::scientific).ptr;
  *end = '\0';
  const char* const e = std::find(shortest, end, 'e');
  const int exponent = std::atoi(e + 1);
  if (exponent < -4 || exponent >= 16)
    return {room.data(), size_t(std::copy(shortest, end, room.data()) - room.data())};
  const char* digit = shortest;
  char* out = room.data();
  if (*digit == '-') *out++ = *digit++;
  if (exponent < 0) {
    out = std::copy_n("0.", 2, out);
    out = std::fill_n(out, -exponent - 1, '0');
  }
  int place = exponent;
  for (; digit != e; ++digit) {
    if (*digit == '.') continue;
    *out++ = *digit;
    if (place-- == 0 && digit + 1 != e) *out++ = '.';
  }
  if (exponent >= 0 && place >= -1) {  // it ends before the point
    out = std::fill_n(out, place + 1, '0');
    out = std::copy_n(".0", 2, out);
  }
  return {room.data(), size_t(out - room.data())};
}

Json& Json::raw(const char* key, std::string_view value) {
  text_.append(text_.empty() ? "\"" : ", \"").append(key).append("\": ").append(value);
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

Json& Json::add(const char* key, double value) {
  std::array<char, 48> room;
  return raw(key, std::isfinite(value) ? number(value, room) : "null");
}

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
