// How predictions turned out: how often intervals held what came, and by how much they erred.
import { useEffect, useState } from "preact/hooks";
import { get, type PredictionScore, type Scorecard } from "./api";
import { count, percent } from "./words";

const KINDS = {
  steps: "steps left",
  seconds: "time left at its size",
  time: "time to the end",
  start: "time to the start",
};

/** Parts of a life: a prediction is made in one of these, not at its beginning. */
const PARTS: Readonly<Record<string, string>> = {
  "10 %": "10 to 25 %",
  "25 %": "25 to 50 %",
  "50 %": "50 to 75 %",
  "75 %": "75 % on",
};

export function PredictionScores() {
  const [open, setOpen] = useState(false);
  const [found, setFound] = useState<Scorecard | null>(null);
  useEffect(() => {
    if (!open) return undefined;
    const stop = new AbortController();
    get<Scorecard>("/v1/promises", stop.signal).then(setFound, () => undefined); // the stream says when it is away
    return () => stop.abort();
  }, [open]);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>How predictions turned out</summary>
      {found && !found.scores.length && <p class="quiet">None has been judged yet: that takes a job that succeeded.</p>}
      {found && found.scores.length > 0 && <Scores scores={found.scores} />}
    </details>
  );
}

function Scores({ scores }: { scores: PredictionScore[] }) {
  return (
    <div class="table">
      <table>
        <caption class="quiet">held: part of the predictions whose 80 % interval held what came</caption>
        <thead>
          <tr>
            <th scope="col">predicted</th>
            <th scope="col">when</th>
            <th scope="col" class="figure">
              judged
            </th>
            <th scope="col" class="figure">
              held
            </th>
            <th scope="col" class="figure">
              median error
            </th>
          </tr>
        </thead>
        <tbody>
          {scores.map((score) => (
            <tr key={`${score.kind} ${score.part}`}>
              <td>{KINDS[score.kind]}</td>
              <td>{PARTS[score.part] ?? score.part}</td>
              <td class="figure">{count(score.promises)}</td>
              <td class="figure">{percent(score.held)}</td>
              <td class="figure">{count(score.median_error_percent)} %</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
