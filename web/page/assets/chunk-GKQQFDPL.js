import{a as t}from"./chunk-HOXZUWDE.js";var r=t(""),e=t([]);export{r as a,e as b};
