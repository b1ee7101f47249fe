//! PreUp, PostUp, PreDown and PostDown.

use std::{
    io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
};

use anyhow::{Context, bail};
use sys::process::unmask;

/// The variables that hooks receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookEnvironment {
    /// The interface's name.
    pub interface: String,
    /// The configuration file.
    pub file: PathBuf,
}

/// A hook, ready to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// The command.
    pub command: String,
    /// Its variables.
    pub environment: HookEnvironment,
    /// The working directory; `None` for that of the process that runs the hook.
    pub folder: Option<PathBuf>,
}

impl HookEnvironment {
    /// Runs PreUp or PostUp hooks in order, in the working directory of the process that executes
    /// them. `%i` is replaced by the interface's name.
    ///
    /// # Errors
    /// A hook failed; the ones after it did not run.
    pub fn run_up(
        &self,
        key: &str,
        hooks: &[String],
        run: impl FnMut(&Hook) -> io::Result<ExitStatus>,
    ) -> anyhow::Result<()> {
        self.run(key, hooks, None, run)
    }

    /// Runs PreDown or PostDown hooks in order, in the folder of the configuration file.
    ///
    /// # Errors
    /// A hook failed; the ones after it did not run.
    pub fn run_down(
        &self,
        key: &str,
        hooks: &[String],
        run: impl FnMut(&Hook) -> io::Result<ExitStatus>,
    ) -> anyhow::Result<()> {
        // A descriptor such as /dev/fd/63 is in a virtual folder.
        let folder = self.file.parent().filter(|folder| !folder.starts_with("/proc"));
        let folder = folder.filter(|folder| !folder.starts_with("/dev") && folder.is_dir());
        self.run(key, hooks, Some(folder.unwrap_or(Path::new("/"))), run)
    }

    fn run(
        &self,
        key: &str,
        hooks: &[String],
        folder: Option<&Path>,
        mut run: impl FnMut(&Hook) -> io::Result<ExitStatus>,
    ) -> anyhow::Result<()> {
        for text in hooks {
            let command = text.replace("%i", &self.interface);
            tracing::info!("{key}: {command}");
            let (environment, folder) = (self.clone(), folder.map(Path::to_owned));
            let what = || format!("{key} = {text}");
            let status = run(&Hook { command, environment, folder }).with_context(what)?;
            if !status.success() {
                bail!("{}: {status}", what());
            }
        }
        Ok(())
    }
}

impl Hook {
    /// Runs the hook as a child of this process, with its standard input and output, and waits
    /// until it exits. As in wg-quick(8), it stops at the first command that fails.
    ///
    /// # Errors
    /// The shell or the folder does not exist.
    pub fn run(&self) -> io::Result<ExitStatus> {
        self.run_with(|_| Ok(()))
    }

    /// Runs the hook without standard input. Its output goes to standard error, which is the log.
    ///
    /// # Errors
    /// Those of [`Hook::run`].
    pub fn run_alone(&self) -> io::Result<ExitStatus> {
        self.run_with(|process| {
            let log = io::stderr().as_fd().try_clone_to_owned()?;
            process.stdin(Stdio::null()).stdout(log);
            Ok(())
        })
    }

    fn run_with(&self, adapt: impl Fn(&mut Command) -> io::Result<()>) -> io::Result<ExitStatus> {
        let run = |shell: &str, options: &[&str]| {
            let mut process = self.shell(shell, options);
            adapt(&mut process)?;
            process.status()
        };
        match run("bash", &["-e", "-o", "pipefail", "-O", "extglob", "-c"]) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => run("sh", &["-e", "-c"]),
            status => status,
        }
    }

    fn shell(&self, shell: &str, options: &[&str]) -> Command {
        let mut process = Command::new(shell);
        process.args(options).arg(&self.command);
        process.env("INTERFACE", &self.environment.interface);
        process.env("CONFIG_FILE", &self.environment.file);
        if let Some(folder) = &self.folder {
            process.current_dir(folder);
        }
        unmask(&mut process);
        process
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn environment(file: &Path) -> HookEnvironment {
        HookEnvironment { interface: "wg7".into(), file: file.to_owned() }
    }

    #[test]
    fn hook_gets_interface_and_file_and_runs_in_the_folder_for_its_key() {
        let folder = std::env::temp_dir().join(format!("linerate-hook-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let folder = folder.canonicalize().unwrap();
        let (file, log) = (folder.join("wg7.conf"), folder.join("log"));
        let hook = format!("echo \"%i $INTERFACE $CONFIG_FILE $PWD\" >>{}", log.display());
        let (environment, hooks) = (environment(&file), [hook]);
        let run = |hook: &Hook| hook.run_alone();
        environment.run_up("PostUp", &hooks, run).unwrap();
        environment.run_down("PreDown", &hooks, run).unwrap();
        let here = std::env::current_dir().unwrap();
        let line = |at: &Path| format!("wg7 wg7 {} {}\n", file.display(), at.display());
        assert_eq!(fs::read_to_string(&log).unwrap(), line(&here) + &line(&folder));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn first_failed_command_stops_all_hooks() {
        for (hooks, failed) in [
            (&["true", "false; true"][..], Some("PreUp = false; true: exit status: 1")),
            (&["exit 3", "true"], Some("PreUp = exit 3: exit status: 3")),
            (&["false | true"], Some("PreUp = false | true: exit status: 1")),
            (&["false || true", "if false; then :; fi", "! true; true"], None),
            (&["[[ a == @(a|b) ]]"], None),
        ] {
            let hooks: Vec<_> = hooks.iter().map(|&hook| hook.to_owned()).collect();
            let run = |hook: &Hook| hook.run_alone();
            let done = environment(Path::new("/wg7.conf")).run_up("PreUp", &hooks, run);
            assert_eq!(done.err().map(|error| error.to_string()).as_deref(), failed, "{hooks:?}");
        }
    }

    #[test]
    fn hook_runs_in_the_root_folder_if_the_file_is_a_descriptor_or_absent() {
        for file in ["/dev/fd/63", "/proc/self/fd/63", "/nowhere/at/all/wg7.conf", "wg7.conf"] {
            let mut folders = Vec::new();
            let run = |hook: &Hook| {
                folders.push(hook.folder.clone());
                hook.run_alone()
            };
            environment(Path::new(file)).run_down("PostDown", &["true".into()], run).unwrap();
            assert_eq!(folders, [Some(PathBuf::from("/"))], "{file}");
        }
    }
}
