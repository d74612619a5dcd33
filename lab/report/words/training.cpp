// Sentences about figures of training: curves of a loss, and the time and memory that a method
// saves.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/report/words/parts.h"
#include "lab/report/words/wording.h"
#include "lab/terminal/text.h"
#include "lab/terminal/units.h"

namespace tessera::lab::report {
namespace {

using Curves = std::vector<const Series*>;

std::string loss_text(double loss) { return fmt::format("{:.3f}", loss); }

// The last measured point of a curve.
const Mark* last_of(const Series& curve) {
  const Mark* last = nullptr;
  for (const Mark& mark : curve.marks) {
    if (mark.y) last = &mark;
  }
  return last;
}

// "At step 200 the loss is 2.310 with standard and 2.311 with flash." Curves that end early say
// where.
std::string ends_text(const DrawnFigure& figure, const Curves& curves) {
  std::size_t end = 0;
  for (const Series* curve : curves) end = std::max(end, last_of(*curve)->x);
  std::vector<std::string> parts;
  for (const Series* curve : curves) {
    const Mark* last = last_of(*curve);
    const std::string early =
        last->x == end ? "" : fmt::format(" (at {})", where(figure.x, figure.x.labels[last->x]));
    parts.push_back(fmt::format("{} with {}{}", loss_text(*last->y), curve->primary, early));
  }
  return fmt::format("At {} the loss is {}.", where(figure.x, figure.x.labels[end]), listed(parts));
}

// "Compared with standard, the loss differs by at most 0.0042 for flash (at step 60) and …"
std::string apart_text(const DrawnFigure& figure, const Curves& curves) {
  const auto standard = std::find_if(curves.begin(), curves.end(),
                                     [](const Series* curve) { return curve->primary == "standard"; });
  const Series& base = standard == curves.end() ? *curves.front() : **standard;
  std::vector<std::string> parts;
  for (const Series* curve : curves) {
    double widest = -1;
    std::size_t place = 0;
    for (const Mark& mark : curve->marks) {
      const Mark* other = base.at(mark.x);
      if (curve == &base || !mark.y || other == nullptr || !other->y) continue;
      if (const double apart = std::fabs(*mark.y - *other->y); apart > widest) widest = apart, place = mark.x;
    }
    if (widest < 0) continue;
    parts.push_back(fmt::format("{} for {} (at {})", significant(widest, 2), curve->primary,
                                where(figure.x, figure.x.labels[place])));
  }
  return parts.empty()
             ? ""
             : fmt::format("Compared with {}, the loss differs by at most {}.", base.primary, listed(parts));
}

// When each curve first gets as low as all of them do. "The loss falls to 2.35 after 161 s with
// standard."
std::string race_text(const DrawnFigure& figure, const Curves& curves) {
  double goal = 0;
  for (const Series* curve : curves) {
    double lowest = *last_of(*curve)->y;
    for (const Mark& mark : curve->marks) lowest = std::min(lowest, mark.y.value_or(lowest));
    goal = std::max(goal, lowest);
  }
  std::vector<std::string> parts;
  for (const Series* curve : curves) {
    const auto there = std::find_if(curve->marks.begin(), curve->marks.end(),
                                    [&](const Mark& mark) { return mark.y && *mark.y <= goal; });
    parts.push_back(fmt::format("{} with {}", duration_text(figure.x.values[there->x]), curve->primary));
  }
  return fmt::format("The loss falls to {} after {}.", loss_text(goal), listed(parts));
}

// A saving and where it was made.
struct Saving {
  double percent;
  std::string where;
};

// "saves 30.0 % of the time", "takes 12.0 % longer"; "0.0 %", not "-0.0 %", where one digit shows
// nothing.
std::string saving_words(const DrawnFigure& figure, double percent) {
  const std::string& what = figure.y.symbol;
  if (percent > -0.05) return fmt::format("saves {:.1f} % of the {}", std::max(percent, 0.0), what);
  return what == "time" ? fmt::format("takes {:.1f} % longer", -percent)
                        : fmt::format("needs {:.1f} % more {}", -percent, what);
}

// "On average over 2 points, training with flash attention takes 141.1 % longer; at best …"
std::string saving_text(const DrawnFigure& figure, const std::vector<Saving>& savings) {
  double sum = 0;
  for (const Saving& saving : savings) sum += saving.percent;
  const double mean = sum / static_cast<double>(savings.size());
  std::string text = fmt::format("On average over {}, training with flash attention {}",
                                 counted(savings.size(), "point"), saving_words(figure, mean));
  if (savings.size() > 1) {
    const auto [least, most] =
        std::minmax_element(savings.begin(), savings.end(),
                            [](const Saving& a, const Saving& b) { return a.percent < b.percent; });
    text += fmt::format("; at best it {} ({}), at worst it {} ({})", saving_words(figure, most->percent),
                        most->where, saving_words(figure, least->percent), least->where);
  }
  return text + ".";
}

}  // namespace

Sentences loss_sentences(const DrawnFigure& figure) {
  Sentences sentences;
  for (const Context& context : contexts_of(figure)) {
    Curves curves;
    for (const Series* series : context.members) {
      if (last_of(*series) != nullptr) curves.push_back(series);
    }
    if (curves.empty()) continue;
    const std::string prefix = context.name.empty() ? "" : sentence(context.name) + ": ";
    if (figure.x.numeric && figure.x.quantity.field == "train_seconds") {
      sentences.push_back(prefix + race_text(figure, curves));
    } else {
      sentences.push_back(prefix + ends_text(figure, curves));
      sentences.push_back(apart_text(figure, curves));
    }
  }
  for (std::string& one : missing_sentence(figure, contexts_of(figure))) {
    if (sentences.size() > 1) sentences.resize(1);
    sentences.push_back(std::move(one));
  }
  return sentences;
}

// One sentence for all points of a figure, or for each of two machines.
Sentences saving_sentences(const DrawnFigure& figure) {
  std::vector<std::pair<std::string, std::vector<Saving>>> groups;
  for (const Panel& panel : figure.panels) {
    for (const Series& series : panel.series) {
      const std::string context = series.rest.empty() ? "" : series.primary;
      auto group = std::find_if(groups.begin(), groups.end(),
                                [&](const auto& other) { return other.first == context; });
      if (group == groups.end()) group = groups.insert(group, {context, {}});
      for (const Mark& mark : series.marks) {
        if (!mark.y) continue;
        const std::string& name = series.rest.empty() ? series.primary : series.rest;
        std::string place = fmt::format("{}, {}", where(figure.x, figure.x.labels[mark.x]), name);
        if (!panel.title.empty()) place += ", " + panel.title;
        group->second.push_back({*mark.y, place});
      }
    }
  }
  Sentences sentences;
  for (const auto& [context, savings] : groups) {
    if (!savings.empty())
      sentences.push_back((context.empty() ? "" : context + ": ") + saving_text(figure, savings));
  }
  return sentences;
}

}  // namespace tessera::lab::report
