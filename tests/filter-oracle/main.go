// Judges packets as Tailscale's own filter does, for the tests of linerate's packet::filter. It
// answers each line of its stdin with one of its stdout:
//
//	policy JSON   sets these rules; existing flows remain, as in tailscaled
//	out HEX       sends a packet
//	in HEX        receives one: accept or drop
//	jailed HEX    receives one of a jailed peer: accept or drop
//	grants A B    capabilities of A at B: tailcfg.PeerCapMap as JSON
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log"
	"net/netip"
	"os"
	"slices"
	"strings"

	"go4.org/netipx"
	"tailscale.com/net/packet"
	"tailscale.com/tailcfg"
	"tailscale.com/types/logger"
	"tailscale.com/wgengine/filter"
)

type policy struct {
	Rules     []tailcfg.FilterRule
	Local     []string
	ShieldsUp bool
	// Capabilities of the peers with these addresses.
	Capabilities map[netip.Addr][]tailcfg.NodeCapability
}

func main() {
	var rules, jail *filter.Filter
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		verb, rest, _ := strings.Cut(lines.Text(), " ")
		switch verb {
		case "policy":
			rules, jail = compile(rest, rules, jail)
			fmt.Println("ok")
		case "out":
			rules.RunOut(parse(rest), 0)
			fmt.Println("ok")
		case "in":
			fmt.Println(strings.ToLower(rules.RunIn(parse(rest), 0).String()))
		case "jailed":
			fmt.Println(strings.ToLower(jail.RunIn(parse(rest), 0).String()))
		case "grants":
			source, destination, _ := strings.Cut(rest, " ")
			grants, err := json.Marshal(rules.CapsWithValues(
				netip.MustParseAddr(source), netip.MustParseAddr(destination)))
			if err != nil {
				log.Fatal(err)
			}
			fmt.Printf("%s\n", grants)
		default:
			log.Fatalf("unknown verb %q", verb)
		}
	}
}

func parse(text string) *packet.Parsed {
	bytes, err := hex.DecodeString(text)
	if err != nil {
		log.Fatal(err)
	}
	parsed := new(packet.Parsed)
	parsed.Decode(bytes)
	return parsed
}

func compile(text string, before, jailBefore *filter.Filter) (rules, jail *filter.Filter) {
	var policy policy
	if err := json.Unmarshal([]byte(text), &policy); err != nil {
		log.Fatal(err)
	}
	// Unreadable rules are skipped, as in tailscaled.
	matches, _ := filter.MatchesFromFilterRules(policy.Rules)
	var builder netipx.IPSetBuilder
	for _, text := range policy.Local {
		addresses, err := netipx.ParseIPRange(text)
		if err != nil {
			log.Fatal(err)
		}
		builder.AddRange(addresses)
	}
	local, err := builder.IPSet()
	if err != nil {
		log.Fatal(err)
	}
	jail = filter.NewShieldsUpFilter(local, nil, jailBefore, logger.Discard)
	if policy.ShieldsUp {
		return filter.NewShieldsUpFilter(local, nil, before, logger.Discard), jail
	}
	has := func(source netip.Addr, name tailcfg.NodeCapability) bool {
		return slices.Contains(policy.Capabilities[source], name)
	}
	return filter.New(matches, has, local, nil, before, logger.Discard), jail
}
