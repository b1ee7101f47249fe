//! This program as one of the processes that others start: the guardian of `linerate up`, the
//! resolver of names, the process that forwards a log to syslog, and the steward, the agent and the
//! relay of a node of a tailnet.

use std::env;

use process::{
    Guard, LogStyle, ResolverProcess, SyslogProcess,
    member::{AgentProcess, RelayProcess, Steward},
};

use crate::log::{LeavesTerminal, Log};

/// The process that the arguments ask for.
pub(crate) enum Requested {
    Guard(Guard),
    Steward(Steward),
    Agent(AgentProcess),
    Relay(RelayProcess),
    Resolver(ResolverProcess),
    Syslog(SyslogProcess),
}

/// The process that this one was started as, and how it logs; `None` if a user started it.
pub(crate) fn requested() -> Option<(LogStyle, Requested)> {
    let guard = Guard::asked_for(env::args_os()).map(|it| (it.log_style, Requested::Guard(it)));
    let steward = || Steward::asked_for(env::args_os());
    let agent = || AgentProcess::asked_for(env::args_os());
    let relay = || RelayProcess::asked_for(env::args_os());
    let resolver = || ResolverProcess::asked_for(env::args_os());
    let syslog = || SyslogProcess::asked_for(env::args_os());
    guard
        .or_else(|| steward().map(|it| (it.log_style, Requested::Steward(it))))
        .or_else(|| agent().map(|it| (it.log_style, Requested::Agent(it))))
        .or_else(|| relay().map(|it| (it.log_style, Requested::Relay(it))))
        .or_else(|| resolver().map(|it| (it.log_style, Requested::Resolver(it))))
        .or_else(|| syslog().map(|it| (LogStyle::default(), Requested::Syslog(it))))
}

/// Runs it. It logs like the process that started it.
pub(crate) fn run(log_style: LogStyle, requested: Requested) -> anyhow::Result<()> {
    Log::of(log_style).start();
    if log_style.background {
        LeavesTerminal::prepare().leave();
    }
    match requested {
        Requested::Guard(guard) => guard.run(),
        Requested::Steward(steward) => steward.run(),
        Requested::Agent(agent) => agent.run(),
        Requested::Relay(relay) => relay.run(),
        Requested::Resolver(resolver) => resolver.run(),
        Requested::Syslog(syslog) => syslog.run(),
    }
}
