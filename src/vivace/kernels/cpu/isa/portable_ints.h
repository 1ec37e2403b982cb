// Sixteen 32-bit integers, or 64 bytes, in standard C++, and products of bytes.
#pragma once

#include "../quant.h"
#include "portable.h"

namespace vivace::portable {

struct Ints {
    uint32_t v[16];  // unsigned: sums may not overflow, but shifts of negative numbers have to be defined

    // f applied lane by lane.
    template <class F>
    static Ints lanes(F f) {
        Ints r;
        for (int i = 0; i < 16; ++i) r.v[i] = static_cast<uint32_t>(f(i));
        return r;
    }
    static Ints load(const void* p) {
        Ints r;
        memcpy(r.v, p, sizeof r.v);
        return r;
    }
    static Ints all(int32_t x) {
        return lanes([&](int) { return x; });
    }
    static Ints all_bytes(int x) { return all(static_cast<int32_t>(0x01010101u * static_cast<uint32_t>(x))); }
    // The four bytes at p, sixteen times.
    static Ints all_of(const int8_t* p) {
        int32_t four;
        memcpy(&four, p, sizeof four);
        return all(four);
    }
    // The 16 bytes at p, four times.
    static Ints four_times(const uint8_t* p) {
        uint32_t words[4];
        memcpy(words, p, sizeof words);
        return lanes([&](int i) { return words[i % 4]; });
    }
    static Ints load_int8(const int8_t* p) {
        return lanes([&](int i) { return static_cast<int32_t>(p[i]); });
    }
    static Ints bits_of(const Vec16& x) { return load(x.v); }
    // The largest of the bits of |a| and |b|.
    static uint32_t largest_size(const Vec16& a, const Vec16& b) {
        uint32_t most = 0;
        for (int i = 0; i < 16; ++i) {
            const uint32_t x = portable::bits_of(a.v[i]) & 0x7fffffffu, y = portable::bits_of(b.v[i]) & 0x7fffffffu;
            most = x > most ? x : most;
            most = y > most ? y : most;
        }
        return most;
    }

    void store(void* p) const { memcpy(p, v, sizeof v); }
    // The lowest byte of each lane.
    void store_bytes(int8_t* p) const {
        for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(v[i] & 255u);
    }
    int32_t sum() const {
        uint32_t total = 0;
        for (int i = 0; i < 16; ++i) total += v[i];
        return static_cast<int32_t>(total);
    }
    Vec16 floats() const {
        return portable::lanes([&](int i) { return static_cast<float>(static_cast<int32_t>(v[i])); });
    }
};

inline Ints add(const Ints& a, const Ints& b) {
    return Ints::lanes([&](int i) { return a.v[i] + b.v[i]; });
}
inline Ints sub(const Ints& a, const Ints& b) {
    return Ints::lanes([&](int i) { return a.v[i] - b.v[i]; });
}
inline Ints bit_and(const Ints& a, const Ints& b) {
    return Ints::lanes([&](int i) { return a.v[i] & b.v[i]; });
}
inline Ints bit_or(const Ints& a, const Ints& b) {
    return Ints::lanes([&](int i) { return a.v[i] | b.v[i]; });
}

inline Ints shift_left(const Ints& a, int bits) {
    return Ints::lanes([&](int i) { return a.v[i] << bits; });
}
inline Ints shift_right(const Ints& a, int bits) {
    return Ints::lanes([&](int i) { return static_cast<int32_t>(a.v[i]) >> bits; });
}

// Pairs of bytes as 16-bit numbers, shifted.
inline Ints shift16_left(const Ints& a, int bits) {
    return Ints::lanes([&](int i) { return ((a.v[i] >> 16) << bits) << 16 | ((a.v[i] & 0xffffu) << bits & 0xffffu); });
}
inline Ints shift16_right(const Ints& a, int bits) {
    return Ints::lanes([&](int i) { return ((a.v[i] >> 16) >> bits) << 16 | (a.v[i] & 0xffffu) >> bits; });
}

// table[index] of each byte, for indices below 16.
inline Ints look_up(const Ints& table, const Ints& index) {
    uint8_t bytes[64], found[64];
    table.store(bytes);
    index.store(found);
    for (int i = 0; i < 64; ++i) found[i] = bytes[found[i] & 15];
    return Ints::load(found);
}

// sum + four products of an unsigned and a signed byte in each lane.
struct Dots {
    static constexpr bool kTakesAnyCode = true;
    static constexpr int kTileRows = 1;
    static constexpr int kDirectRows = 0;

    template <bool>
    static Ints add(const Ints& sum, const Ints& codes, const Ints& four) {
        return Ints::lanes([&](int i) {
            uint32_t total = sum.v[i];
            for (int shift = 0; shift < 32; shift += 8) {
                const int32_t code = codes.v[i] >> shift & 255u;
                const int32_t activation = static_cast<int8_t>(four.v[i] >> shift & 255u);
                total += static_cast<uint32_t>(code * activation);
            }
            return total;
        });
    }
};

}  // namespace vivace::portable
