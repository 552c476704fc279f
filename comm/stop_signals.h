// SIGTERM, SIGINT, SIGUSR1 and SIGHUP as a request to stop: the handlers set flags, and whoever
// runs the job looks at them. SIGUSR1 since mpirun hands it on to its ranks and then lets them
// live; after SIGTERM it kills them within a second. SIGHUP, which says that the terminal is gone,
// unless it is ignored, as nohup has it.
#pragma once

namespace maxim {

// From now on the first of these signals is noted and nothing else happens. A second one, more
// than 0.3 s later (launchers send the first one twice), is noted too; with `alone`, or at the
// third, the process ends at once with 128 + signal.
void watch_stop_signals(bool alone);

int stop_signal();         // the first that came, 0: none
bool stop_signal_again();  // and another later

}  // namespace maxim
