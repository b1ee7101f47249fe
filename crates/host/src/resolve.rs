//! Resolves the host names of endpoints.

use std::{env, net::SocketAddr, time::Duration};

use anyhow::{Context, bail};
use config::EndpointName;
use sys::resolve::ResolveError;

/// Number of retries while no server answers: a number or `infinity` (wg(8)).
const RETRIES_VARIABLE: &str = "WG_ENDPOINT_RESOLUTION_RETRIES";
/// The default number of retries. With the pauses below they take 72 seconds.
const RETRIES: u32 = 15;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(20);

/// Resolves a name. While no server answers, it retries like wg(8) and logs each retry. `wait`
/// waits for the given time.
///
/// # Errors
/// The name does not exist, no server answers, or the error of `wait`.
pub fn resolve(
    name: &EndpointName,
    mut wait: impl FnMut(Duration) -> anyhow::Result<()>,
) -> anyhow::Result<SocketAddr> {
    let what = || format!("Endpoint = {name}");
    let value = env::var_os(RETRIES_VARIABLE);
    let retries = value.map_or(Ok(Some(RETRIES)), |value| retries(&value.to_string_lossy()))?;
    let resolve = || sys::resolve::resolve(&name.host, name.port);
    let warn_and_wait = |error: &ResolveError, pause: Duration| {
        tracing::warn!("{}: {error}; next try in {:.2} s", what(), pause.as_secs_f64());
        wait(pause)
    };
    retry(resolve, retries, warn_and_wait).with_context(what)
}

/// Parses the number of retries; `None` means unlimited.
fn retries(text: &str) -> anyhow::Result<Option<u32>> {
    match text.parse() {
        Ok(retries) => Ok(Some(retries)),
        Err(_) if text == "infinity" => Ok(None),
        Err(_) => bail!("{RETRIES_VARIABLE}: {text:?} is neither a number nor infinity"),
    }
}

fn retry(
    mut resolve: impl FnMut() -> Result<SocketAddr, ResolveError>,
    retries: Option<u32>,
    mut wait: impl FnMut(&ResolveError, Duration) -> anyhow::Result<()>,
) -> anyhow::Result<SocketAddr> {
    let (mut left, mut pause) = (retries, FIRST_PAUSE);
    loop {
        let error = match resolve() {
            Ok(address) => return Ok(address),
            Err(error) => error,
        };
        if error.is_permanent() || left == Some(0) {
            return Err(error.into());
        }
        wait(&error, pause)?;
        left = left.map(|left| left - 1);
        pause = LONGEST_PAUSE.min(pause * 6 / 5);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pauses, in milliseconds, if attempt number `answered` succeeds.
    fn pauses(retries: Option<u32>, answered: usize) -> (bool, Vec<u128>) {
        let (mut tries, mut pauses) = (0, Vec::new());
        let resolve = || {
            tries += 1;
            let address = "192.0.2.1:1".parse().unwrap();
            if tries == answered {
                Ok(address)
            } else {
                Err(ResolveError::from_code(sys::resolve::TEMPORARY_FAILURE))
            }
        };
        let resolved = retry(resolve, retries, |_, pause| {
            pauses.push(pause.as_millis());
            Ok(())
        });
        (resolved.is_ok(), pauses)
    }

    #[test]
    fn name_is_retried_15_times_in_72_seconds() {
        let (resolved, all) = pauses(Some(RETRIES), usize::MAX);
        assert!(!resolved);
        assert_eq!((all.len(), all[0], all[1], all[14]), (15, 1000, 1200, 12_839));
        assert_eq!(all.iter().sum::<u128>() / 1000, 72);
        assert_eq!(pauses(Some(RETRIES), 16), (true, all), "the last attempt succeeds");
        assert_eq!(pauses(Some(0), 2), (false, Vec::new()));
        assert_eq!(pauses(Some(2), 3), (true, vec![1000, 1200]));
        let (resolved, all) = pauses(None, 1000);
        assert!(resolved && all.len() == 999 && all[998] == 20_000);
    }

    #[test]
    fn nonexistent_name_is_not_retried() {
        let name = EndpointName { host: "no such name".to_owned(), port: 1 };
        let error = resolve(&name, |_| unreachable!("it fails at once")).unwrap_err();
        assert!(format!("{error:#}").starts_with("Endpoint = no such name:1: "), "{error:#}");
    }

    #[test]
    fn number_of_retries_is_a_number_or_infinity() {
        assert_eq!(retries("0").unwrap(), Some(0));
        assert_eq!(retries("20").unwrap(), Some(20));
        assert_eq!(retries("infinity").unwrap(), None);
        for text in ["", "-1", "Infinity", "5 ", "1e3"] {
            assert!(retries(text).is_err(), "{text}");
        }
    }
}
