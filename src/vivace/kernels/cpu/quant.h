// Quantized weights in memory, the quantized activations that meet them, and the kernels over both as function pointers.
//
// A weight is scale * (code - zero), or scale * code + minimum. A matrix is cut into panels of 16 outputs; three panels
// in a row form a block that is computed at a time, and panels that are left over are blocks of their own. A block of P
// panels over G groups of 32 inputs is contiguous:
//
//   codes   [G] groups of byte vectors [P][64]: 64 bytes are 16 outputs x 4 inputs, and step s is inputs 4s .. 4s + 3.
//           4 to 6 bits: vector j of four holds the lowest four bits of step j below those of step j + 4;
//           2 and 3 bits: vector j of two holds the lowest two bits of steps 4j .. 4j + 3, the first of them lowest;
//           then the bits above: one per code (3 and 5 bits), bit s of a byte belonging to step s, or two per code
//           (6 bits), steps 0-3 in the first vector and 4-7 in the second. 8 bits: one vector for each step.
//   coarse  [G * 32 / span] of [P][16] scales and [P][16] minima, float16 or float32
//   fine    [G * 32 / group] of [P][16] int8 scales and [P][16] int8 minima, which multiply the coarse ones
#pragma once

#include <cstdint>

namespace vivace {

constexpr int kGroup = 32;      // inputs that share an activation scale
constexpr int kSteps = 8;       // dot products of four bytes in a group
constexpr int kTile = 4;        // rows of activations that stand together
constexpr int kVector = 64;     // bytes: four inputs of 16 outputs
constexpr int kQuantRows = 128;  // most rows of one block

struct QuantLayout {
    int bits;        // of a code: 2 to 6, or 8
    int group;       // inputs of a scale: 16 or 32
    int span;        // inputs of a coarse scale: 32, or more when there are fine ones
    int zero;        // a power of two, 1 to 128; with minima it has no meaning
    bool has_minimum;
    bool has_fine;
    bool is_f32;     // coarse scales and minima are float32, else float16
    bool has_table;  // the 4-bit codes select one of 16 byte codes
    uint8_t table[16];

    // Codes are below 128, so that sums of two products fit 16 bits.
    bool has_small_codes() const { return bits < 8 && !has_table; }
    int64_t code_bytes() const { return bits * kVector; }  // of a panel and group
    int64_t coarse_bytes() const { return 16 * (is_f32 ? 4 : 2) * (has_minimum ? 2 : 1); }
    int64_t fine_bytes() const { return has_fine ? 16 * (has_minimum ? 2 : 1) : 0; }
    int64_t coarse_offset(int64_t groups) const { return groups * code_bytes(); }
    int64_t fine_offset(int64_t groups) const { return coarse_offset(groups) + groups * kGroup / span * coarse_bytes(); }
    // Rounded up, so that codes stand at whole cache lines.
    int64_t panel_bytes(int64_t groups) const {
        const int64_t bytes = fine_offset(groups) + groups * kGroup / group * fine_bytes();
        return (bytes + kVector - 1) / kVector * kVector;
    }
};

// What belongs to one group of one tile of four rows, followed by the codes: [planes][4 rows][32] int8. An activation
// is scale * code; with two planes the code is 64 * high + low. Index 0 of a sum: the whole group, 1 and 2: its halves.
struct alignas(64) ActivationGroup {
    float scale[kTile];
    float sum[3][kTile];         // scale * sum of codes
    int32_t negative[3][kTile];  // -128 * sum of codes
    float unused[kTile];
};

constexpr int64_t activation_bytes(int planes) { return sizeof(ActivationGroup) + planes * kTile * kGroup; }

// Up to kQuantRows rows times one block of panels.
struct QuantBlock {
    const QuantLayout* layout;
    const uint8_t* weights;      // the block
    const uint8_t* activations;  // [tiles][groups] of an ActivationGroup and its codes
    const float* bias;           // (columns) or null
    const float* residual;       // (rows, columns) with stride y_stride, or null
    float* y;                    // (rows, columns) with stride y_stride
    int64_t groups;
    int64_t y_stride;
    int planes;
    int panels;  // 1 or 3
    int rows;
    int columns;   // outputs of this block; the last panel may hold fewer than 16
    bool is_last;  // no block follows in memory
};

// `rows` (1 to 4) rows of x, (rows, groups * 32), become one tile.
struct ActivationTile {
    const float* x;
    uint8_t* tile;
    int64_t groups;
    int planes;
    int rows;
};

struct QuantTable {
    void (*quantize_tile)(const ActivationTile&);
    void (*block)(const QuantBlock&);
};

extern const QuantTable kAvx512VnniQuant;
extern const QuantTable kAvx512Quant;
extern const QuantTable kAvx2VnniQuant;
extern const QuantTable kAvx2Quant;
extern const QuantTable kPortableQuant;

}  // namespace vivace
