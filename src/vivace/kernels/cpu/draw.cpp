// One id from the scores of a vocabulary, without a sort of it: the largest of each stretch tells which stretches can
// hold the best scores, so that only those are looked at again.
#include "draw.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>

#include "kernels.h"

namespace vivace {
namespace {

constexpr int64_t kNone = -1;        // no id can be drawn
constexpr int64_t kFirstLook = 256;  // most nuclei are this small; each further look is 16 times as wide
constexpr int64_t kRun = 16;         // stretches of one item of the pool

// The scores of one row. Each is a function that calls a body for every number below a count, perhaps on several threads.
template <class Each>
class Row {
public:
    Row(const Table& table, const Each& each, const float* x, int64_t count)
        : table_(table), each_(each), x_(x), count_(count), blocks_((count + kDrawBlock - 1) / kDrawBlock),
          largest_(static_cast<size_t>(blocks_)), sums_(largest_.size()) {}

    int64_t draw(const DrawChoice& choice, double uniform) {
        for_blocks([&](int64_t block) { largest_[at(block)] = table_.draw_largest(x_ + block * kDrawBlock, size(block)); });
        const float largest = *std::max_element(largest_.begin(), largest_.end());
        if (!std::isfinite(largest)) return kNone;
        scale_ = {largest, std::max(choice.temperature, FLT_MIN), choice.temperature != 1.0f, -FLT_MAX, 0.0};
        scale_.top = scale_.of(largest);
        if (0 < choice.top_k && choice.top_k < count_) {
            std::vector<float> found = candidates(choice.top_k);
            std::nth_element(found.begin(), found.begin() + (choice.top_k - 1), found.end(), std::greater<float>());
            scale_.keep_from(scale_.of(found[at(choice.top_k - 1)]));
        }
        if (choice.top_p < 1.0) keep_nucleus(choice.top_p * weigh());
        if (choice.min_p > 0.0) scale_.keep_from(static_cast<float>(scale_.top + std::log(choice.min_p)));
        return invert(uniform * weigh());
    }

private:
    static size_t at(int64_t index) { return static_cast<size_t>(index); }
    int64_t size(int64_t block) const { return std::min(kDrawBlock, count_ - block * kDrawBlock); }

    template <class Body>
    void for_blocks(const Body& body) {
        each_((blocks_ + kRun - 1) / kRun, [&](int64_t run) {
            for (int64_t block = run * kRun; block < std::min(blocks_, (run + 1) * kRun); ++block) body(block);
        });
    }

    // All numbers from some bound on, at least `wanted` of them if there are so many: as many stretches reach the bound.
    std::vector<float> candidates(int64_t wanted) const {
        float bound = -INFINITY;
        if (wanted <= blocks_) {
            std::vector<float> best = largest_;
            std::nth_element(best.begin(), best.begin() + (wanted - 1), best.end(), std::greater<float>());
            bound = best[at(wanted - 1)];
        }
        std::vector<float> found;
        for (int64_t block = 0; block < blocks_; ++block) {
            if (!(largest_[at(block)] >= bound)) continue;
            const float* x = x_ + block * kDrawBlock;
            for (int64_t i = 0; i < size(block); ++i) {
                if (x[i] >= bound) found.push_back(x[i]);
            }
        }
        found.resize(std::max(found.size(), at(wanted)), -INFINITY);  // in place of NaN
        return found;
    }

    // The sum of all weights; those of each stretch stay in sums_.
    double weigh() {
        for_blocks([&](int64_t block) {
            double weights[kDrawBlock];
            const bool is_kept = scale_.of(largest_[at(block)]) >= scale_.least;
            sums_[at(block)] = is_kept ? table_.draw_weigh(x_ + block * kDrawBlock, size(block), scale_, weights) : 0.0;
        });
        double total = 0.0;
        for (double sum : sums_) total += sum;
        return total;
    }

    // Exclude what is below the least likely score of the smallest set that weighs `wanted`.
    void keep_nucleus(double wanted) {
        for (int64_t look = kFirstLook;; look *= 16) {
            const int64_t width = std::min(look, count_);
            std::vector<float> best = candidates(width);
            std::nth_element(best.begin(), best.begin() + (width - 1), best.end(), std::greater<float>());
            best.resize(at(width));
            std::sort(best.begin(), best.end(), std::greater<float>());
            double covered = 0.0, weights[kDrawBlock];
            for (int64_t begin = 0; begin < width; begin += kDrawBlock) {
                const int64_t count = std::min(kDrawBlock, width - begin);
                table_.draw_weigh(best.data() + begin, count, scale_, weights);
                for (int64_t i = 0; i < count; ++i) {
                    covered += weights[i];
                    if (covered >= wanted) return scale_.keep_from(scale_.of(best[at(begin + i)]));
                }
            }
            if (width == count_) return;  // the two sums differ in their last bits: everything is needed
        }
    }

    // The first id up to which the weights exceed `target`; the last one that has any if none does.
    int64_t invert(double target) const {
        double before = 0.0;
        int64_t last = kNone;
        for (int64_t block = 0; block < blocks_; ++block) {
            if (sums_[at(block)] == 0.0) continue;
            last = block;
            if (before + sums_[at(block)] > target) break;
            before += sums_[at(block)];
        }
        double weights[kDrawBlock];
        table_.draw_weigh(x_ + last * kDrawBlock, size(last), scale_, weights);
        int64_t place = 0;
        for (int64_t i = 0; i < kDrawBlock; ++i) {
            if (weights[i] == 0.0) continue;
            place = i;
            before += weights[i];
            if (before > target) break;
        }
        return last * kDrawBlock + place;
    }

    const Table& table_;
    const Each& each_;
    const float* x_;
    const int64_t count_, blocks_;
    std::vector<float> largest_;
    std::vector<double> sums_;
    DrawScale scale_{};
};

}  // namespace

void Kernels::draw(const float* x, const DrawChoice& choice, const double* uniforms, int64_t* y, int64_t rows,
                   int64_t width) {
    // Several rows go to several threads; of a single one, the stretches do.
    const auto alone = [](int64_t count, const auto& body) {
        for (int64_t i = 0; i < count; ++i) body(i);
    };
    const auto together = [this](int64_t count, const auto& body) { share(count, kRun * kDrawBlock * 8, body); };
    if (rows > 1) {
        share(rows, width * 8, [&](int64_t row) {
            y[row] = Row<decltype(alone)>(table_, alone, x + row * width, width).draw(choice, uniforms[row]);
        });
    } else if (rows == 1) {
        y[0] = Row<decltype(together)>(table_, together, x, width).draw(choice, uniforms[0]);
    }
    for (int64_t row = 0; row < rows; ++row) {
        if (y[row] == kNone) {
            throw std::invalid_argument("no id can be drawn from row " + std::to_string(row) +
                                        ", expected a largest score that is finite");
        }
    }
}

}  // namespace vivace
