import{a as t}from"./chunk-KHEEUZC5.js";var r=t(""),e=t([]);export{r as a,e as b};
