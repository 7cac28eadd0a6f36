#!/usr/bin/env bash
# The study of one GPU through the whole pipeline, on a machine with one H200: study.sh OUT SECONDS [TARGET...]
# Stops after SECONDS and packs what is there: tables, figures, records of runs (no raw traces but one of each model).
# Call it again to go on where it stopped, if results/ is still there.
set -uo pipefail
out=$1 seconds=$2
shift 2
mkdir -p "$out"
timeout --signal=INT --kill-after=30 "$seconds" snakemake --cores 16 "${@:-all}" \
    --config 'clusters=[h200x1]' 'simulated=[]' 'studies=[one-gpu]' >"$out/snakemake.log" 2>&1
status=$?
tar --create --gzip --file "$out/results.tar.gz" --exclude='raw/traces' --exclude='*.perfetto.json.gz' results logs figs report.html 2>/dev/null
find results -path '*mbs4*/raw/traces/*' | tar --create --file "$out/traces.tar" --files-from - 2>/dev/null
tail -c 1500 "$out/snakemake.log" | cut -c1-300
exit "$status"
