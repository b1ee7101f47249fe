use super::*;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split(' '))
}

#[test]
fn commands_for_nodes_take_the_node_first_and_the_interface_as_an_option() {
    for line in [
        "linerate ping -i tailnet0 desk",
        "linerate ping desk --interface tailnet0",
        "linerate ping tailnet0 desk",
        "linerate why desk -i tailnet0",
        "linerate why desk tailnet0",
        "linerate whois 100.64.0.1 -i tailnet0",
        "linerate status -i tailnet0",
        "linerate status tailnet0",
        "linerate netcheck -i tailnet0",
        "linerate lock status -i tailnet0",
        "linerate logout -i tailnet0",
        "linerate leave -i tailnet0",
        "linerate set --accept-routes",
        "linerate set -i tailnet0 --accept-routes",
        "linerate set tailnet0 --accept-routes",
        "linerate set wg0 offload udp-gso off",
        "linerate set offload udp-gso off",
        "linerate set -i wg0 offload udp-gso off",
        "linerate capture -w -",
        "linerate capture wg0 -w -",
        "linerate capture -i wg0 -w -",
    ] {
        let parsed = parse(line);
        assert!(parsed.is_ok(), "{line}: {}", parsed.err().unwrap());
    }
}

#[test]
fn an_interface_that_is_given_twice_is_refused() {
    for line in [
        "linerate status tailnet0 -i tailnet1",
        "linerate set wg0 -i wg1",
        "linerate ping one two three",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
}
