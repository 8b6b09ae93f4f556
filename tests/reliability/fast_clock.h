// Simulated hours: the clocks of this process run faster than the world's, and its clock of the day is set back now and
// then. It comes between this process and clock_gettime; and fstatat, since files carry the world's times.
#pragma once

namespace heddle::test {

/// Two hours back in every five: those of the day's clock are then ahead of it, more than the kernel cache takes for a
/// file's age.
inline constexpr double kHoursBetweenSteps = 5, kHoursBack = 2;

/// From now on an hour of the world is `rate` hours here, of CLOCK_REALTIME, CLOCK_MONOTONIC and the times of files.
void run_clock_faster(double rate);

/// Seconds of the world's clock.
double seconds_of_the_world();

}  // namespace heddle::test
