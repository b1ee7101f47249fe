module linerate/tests/filter-oracle

go 1.26.6

require (
	go4.org/netipx v0.0.0-20231129151722-fdeea329fbba
	tailscale.com v1.102.5
)

require (
	github.com/gaissmai/bart v0.26.1 // indirect
	github.com/go-json-experiment/json v0.0.0-20260214004413-d219187c3433 // indirect
	go4.org/mem v0.0.0-20240501181205-ae6ca9944745 // indirect
	golang.org/x/crypto v0.54.0 // indirect
	golang.org/x/exp v0.0.0-20260410095643-746e56fc9e2f // indirect
	golang.org/x/sys v0.47.0 // indirect
)
